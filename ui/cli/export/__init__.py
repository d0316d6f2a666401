"""Descriptions of a supervisor for those who start it: one module for each service manager, pure text from facts."""
