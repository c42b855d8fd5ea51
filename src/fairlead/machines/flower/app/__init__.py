"""A study of Fairlead as a Flower app."""
