"""What runs inside the user's own Python: standard library, and the torch that the script itself has imported.

Loaded by `entry/sitecustomize.py` under another name, so that it needs no installed `cotenant` and hides no module.
It must stay readable for Python 3.8 and later.
"""
