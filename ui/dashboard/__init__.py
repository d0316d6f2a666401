"""The Textual dashboard (spec 14). Only this room imports textual."""
