"""The lane: messages between client and server actors over sockets, where Ray only places, starts and watches them."""
