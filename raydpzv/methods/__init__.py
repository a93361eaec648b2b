"""One file per paper: a client and a server that know no clock, no network and no Ray."""
