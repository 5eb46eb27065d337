"""What ``pytest --loopspec-target NAME`` collects when no test is named."""
