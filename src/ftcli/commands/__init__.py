"""One module a command: settings and plugins in, a `Report` out. Nothing here prints."""
