"""MetaBT: a reproduction of Meta Back-Translation (Pham, Wang, Yang, Neubig, ICLR 2021)."""

__version__ = "0.1.0"
