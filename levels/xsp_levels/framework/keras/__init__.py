"""Records calls of Keras layers, and finds the Keras layers of a graph's operators by scopes.

`entry_point` is where calls enter Keras, `layer` records them, `record` makes plain records of
them and `row` makes rows. `layer_tree` names the layers of a model and tells their sizes, and
`index` finds the layer of an operator of a graph by the operator's scopes. Providers of frameworks
that Keras runs on share this; no framework is imported here.
"""
