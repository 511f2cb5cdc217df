"""Memory of devices: buffers, the layouts of weights in them, and bytes on their way there."""
