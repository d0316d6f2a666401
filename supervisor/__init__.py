"""The one process that starts, watches, feeds and drains the replicas. It never imports torch or textual."""
