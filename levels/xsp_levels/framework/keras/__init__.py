"""Keras: calls of layers in, rows of kind layer out, whichever framework Keras runs on."""
