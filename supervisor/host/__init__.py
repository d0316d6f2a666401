"""What this machine is and does: devices, CPU budget, processes, logs, the runtime folder."""
