"""Messages, their exact sizes, and the network between parties."""
