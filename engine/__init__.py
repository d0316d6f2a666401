"""What runs inside a replica process; the lowest floor: it imports nothing from the supervisor or the ui."""
