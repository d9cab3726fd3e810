"""The command line: options made from the settings, output, exit codes."""
