"""Fairlead: personalized federated learning in which no participant ends up worse off than alone."""
