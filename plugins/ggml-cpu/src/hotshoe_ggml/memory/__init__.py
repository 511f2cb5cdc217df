"""Memory of devices: buffers, the layouts of weights in them, and copying weights into them."""
