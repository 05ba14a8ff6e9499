"""Every operation beside the other implementations that are installed: values first, then time and scratch memory."""
