"""One file a group of commands. Signatures import nothing but typer; bodies import what they need."""
