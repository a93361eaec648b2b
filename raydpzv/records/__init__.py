"""Facts as typed rows; every reported number is a fold over them."""
