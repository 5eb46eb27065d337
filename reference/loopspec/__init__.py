"""loopspec: the executable specification of the LLM agent loop.

``spec_version`` is the version of the standard that this package judges by.
"""

__version__ = "0.1.0"
spec_version = "0.1-draft"
