"""The command `mlm`: one subcommand for each thing that a user does."""
