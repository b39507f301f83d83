"""Models in other people's formats; each module needs the package it speaks to."""
