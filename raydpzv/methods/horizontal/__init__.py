"""Methods of horizontal learning: clients hold rows, all train one model."""
