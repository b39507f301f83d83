"""The contracts as code: what every backend and every mixer must keep."""
