"""One module per command, each with `main(arguments) -> exit code`, imported only when its command is called."""
