"""MetaBT: a reproduction of Meta Back-Translation (Pham, Wang, Yang, Neubig, ICLR 2021)."""

import os

__version__ = "0.1.0"

# Intel's matrix products may round differently from one process to the next unless told to decide
# nothing by what they find on the machine; a run that goes on must do so with the same bits. It
# costs nothing that could be measured.
os.environ.setdefault("MKL_CBWR", "AUTO")
