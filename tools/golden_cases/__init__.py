"""Run the commands of two checkouts on the same inputs and compare what they write."""
