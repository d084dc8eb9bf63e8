"""The providers that come with xsp, a package per level of the stack.

Entry points of the group `xsp.levels` (pyproject.toml) name each provider's class. `native`
holds what several providers share; providers of different vendors never import each other.
"""
