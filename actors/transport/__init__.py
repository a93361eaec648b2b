"""Messages between client and server actors, as frames on sockets or in calls of Ray."""
