"""What every mixer keeps, and what is around one."""
