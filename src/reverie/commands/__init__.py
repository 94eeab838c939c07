"""One module per command. Each offers ``run(arguments) -> exit code`` and imports torch only when it does real work."""
