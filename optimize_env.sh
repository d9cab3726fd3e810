#!/usr/bin/env bash
# Sets the environment variables that ftcli's `environment` hook computes for this machine, in the calling shell:
#
#     source optimize_env.sh [PROFILE]      bash or zsh
#     ftcli_env_restore                     puts everything back
#
# What is set already is yours and stays, and what is said goes to stderr. Nothing that ftcli prints is evaluated as shell code: a line must be
# export NAME='value' or export NAME=value, with a name from the list in _ftcli_env_allowed, and is assigned as text.

if [ -n "${ZSH_VERSION-}" ]; then
  case ${ZSH_EVAL_CONTEXT-} in
    *:file) _ftcli_env_script=$(builtin print -rP -- '%x') ;;
    *) _ftcli_env_script= ;;
  esac
elif [ -n "${BASH_VERSION-}" ] && [ "${BASH_SOURCE-}" != "$0" ]; then
  _ftcli_env_script=${BASH_SOURCE-}
else
  _ftcli_env_script=
fi
if [ -z "$_ftcli_env_script" ]; then
  printf '%s\n' "optimize_env.sh changes the shell that reads it, so it must be sourced, by bash or zsh:  source optimize_env.sh [PROFILE]" >&2
  unset _ftcli_env_script
  # shellcheck disable=SC2317
  return 1 2>/dev/null || exit 1
fi

_ftcli_env_allowed() {
  case $1 in
    OMP_* | GOMP_* | KMP_* | MKL_* | OPENBLAS_* | RAYON_* | TOKENIZERS_* | MALLOC_* | ARROW_*) ;;
    TORCH_* | TORCHINDUCTOR_* | PYTORCH_* | CUDA_* | NCCL_* | HF_* | TRANSFORMERS_*) ;;
    *) return 1 ;;
  esac
}

# Prints what a line assigns as "NAME value", or fails.
_ftcli_env_parse() {
  local name value quote="'" LC_ALL=C
  value=${1#export }
  name=${value%%=*}
  value=${value#*=}
  case $1 in "export $name=$value") ;; *) return 1 ;; esac
  case $name in '' | [!A-Z_]* | *[!A-Z0-9_]*) return 1 ;; esac
  case $value in
    "$quote"*)
      value=${value#"$quote"}
      case $value in *"$quote"*) ;; *) return 1 ;; esac
      case ${value#*"$quote"} in '' | ' # '* | '  # '*) ;; *) return 1 ;; esac
      value=${value%%"$quote"*}
      ;;
    *)
      case $value in *[\ ]*) case ${value#*[\ ]} in '# '* | ' # '*) ;; *) return 1 ;; esac ;; esac
      value=${value%%[\ ]*}
      case $value in '' | *[!A-Za-z0-9_./:,+=@%-]*) return 1 ;; esac
      ;;
  esac
  case $value in *[[:cntrl:]]*) return 1 ;; esac
  printf '%s' "$name $value"
}

# Remembers the variable $1 as it is: unset, set in this shell, or exported.
_ftcli_env_remember() {
  local state=unset
  eval "[ -z \"\${$1+x}\" ]" || state=shell  # $1 is letters, digits and _
  ! printenv "$1" >/dev/null || state=exported
  _FTCLI_ENV_CHANGED="$1=$state ${_FTCLI_ENV_CHANGED-}"
  [ "$state" = unset ] || eval "_FTCLI_ENV_OLD_$1=\${$1}"
}

_ftcli_env_main() {
  [ -z "${ZSH_VERSION-}" ] || emulate -L zsh
  local program=ftcli folder=. lines line pair reason IFS=' '
  ! typeset -f ftcli_env_restore >/dev/null || ftcli_env_restore quiet

  case $_ftcli_env_script in */*) folder=${_ftcli_env_script%/*} ;; esac
  if ! command -v ftcli >/dev/null 2>&1; then
    program=$folder/.venv/bin/ftcli
    if ! [ -x "$program" ]; then
      printf '%s\n' "optimize_env.sh: ftcli is not on PATH, nor at $program. Activate its virtual environment, or install it: pip install ftcli" >&2
      return 1
    fi
  fi
  if [ $# -gt 1 ]; then
    printf '%s\n' "optimize_env.sh: one PROFILE at most, got $#: $*" \
      "In a script that has arguments of its own, write: source optimize_env.sh ''" >&2
    return 2
  fi
  if [ -n "${1-}" ]; then
    lines=$("$program" settings --export-env --profile "$1") || {
      printf '%s\n' "optimize_env.sh: nothing was set. In a script that has arguments of its own, write: source optimize_env.sh ''" >&2
      return 1
    }
  else
    lines=$("$program" settings --export-env) || {
      printf '%s\n' "optimize_env.sh: nothing was set." >&2
      return 1
    }
  fi

  _FTCLI_ENV_CHANGED=
  _ftcli_env_define_restore
  while IFS= read -r line; do
    case $line in
      '') ;;
      '#'*) printf '%s\n' "  ${line#"# "}" >&2 ;;
      *)
        if pair=$(_ftcli_env_parse "$line") && _ftcli_env_allowed "${pair%% *}"; then
          if eval "[ -n \"\${${pair%% *}:-}\" ]" && ! printenv "${pair%% *}" >/dev/null; then
            printf '%s\n' "  kept ${pair%% *}, which this shell has set and not exported" >&2
            continue
          fi
          _ftcli_env_remember "${pair%% *}"
          # shellcheck disable=SC2163
          export "${pair%% *}=${pair#* }"
          reason=
          case $line in *' # '*) reason="  (${line#*" # "})" ;; esac
          printf '%s\n' "  ${pair%% *}=${pair#* }$reason" >&2
        else
          printf '%s\n' "optimize_env.sh: ignored, not an assignment that it makes: $line" >&2
        fi
        ;;
    esac
  done <<FTCLI_ENV_LINES
$lines
FTCLI_ENV_LINES
  printf '%s\n' "ftcli_env_restore puts everything back." >&2
}

_ftcli_env_define_restore() {
  ftcli_env_restore() {
    [ -z "${ZSH_VERSION-}" ] || emulate -L zsh
    local rest=${_FTCLI_ENV_CHANGED-} name state
    while [ -n "$rest" ]; do
      name=${rest%%=*}
      state=${rest#*=}
      state=${state%% *}
      rest=${rest#* }
      unset "$name"
      case $state in
        shell) eval "$name=\${_FTCLI_ENV_OLD_$name}" ;;
        exported) eval "export $name=\"\${_FTCLI_ENV_OLD_$name}\"" ;;
      esac
      unset "_FTCLI_ENV_OLD_$name"
      [ "${1-}" = quiet ] || printf '%s\n' "  $name is as it was" >&2
    done
    unset _FTCLI_ENV_CHANGED
    unset -f ftcli_env_restore
  }
}

_ftcli_env_main "$@" && _ftcli_env_status=0 || _ftcli_env_status=$?  # in a list, so that the caller's set -e does not end it half-way
unset -f _ftcli_env_main _ftcli_env_parse _ftcli_env_allowed _ftcli_env_remember _ftcli_env_define_restore
unset _ftcli_env_script
if [ "$_ftcli_env_status" -ne 0 ]; then
  return "$_ftcli_env_status"
fi
unset _ftcli_env_status
