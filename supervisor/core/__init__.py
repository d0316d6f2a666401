"""The pure core: takes facts and a time, returns decisions. No socket, no process, no clock, no library."""
