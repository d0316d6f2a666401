"""How an exchange reaches a replica: ZeroMQ for managed engines, HTTP for attached ones."""
