"""Methods of vertical learning: clients hold features, the server labels."""
