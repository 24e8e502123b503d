"""Routers that others wrote, in front of two workers."""
