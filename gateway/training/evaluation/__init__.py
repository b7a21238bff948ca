"""What the bundled model can do, measured on calls through the real gateway: the stage `evaluate`, in `run`."""
