"""The canonical document: its schema, its loader with every error at once, edits that keep comments (spec 3)."""
