"""Strobe behind the interfaces of other libraries."""
