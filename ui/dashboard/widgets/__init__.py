"""What a screen is made of, one widget a file."""
