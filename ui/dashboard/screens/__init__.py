"""The screens and dialogs, one a file."""
