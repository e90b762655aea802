"""Figures and pages, drawn from the numbers of training and prediction."""
