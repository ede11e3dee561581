"""The version of this installation, from its metadata."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("mechview")
except PackageNotFoundError:  # a checkout that is on the path without being installed
    __version__ = "0+unknown"
