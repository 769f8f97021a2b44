"""The `dpfest` command: thin Typer commands that parse, call a stage, and print."""
