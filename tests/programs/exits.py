"""A module that ends whoever imports it: `leasekeeper chaos --target` says so in one line."""

import sys

sys.exit("this module does not like to be imported")
