"""Trained models at work, without the training data.

predict      an owner's model on raw rows
export       an owner's model as a folder of its own
"""
