import sys

from metabt.cli import main

sys.exit(main())
