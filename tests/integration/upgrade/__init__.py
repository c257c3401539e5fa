"""What earlier versions have written, and what becomes of it. Each version has a folder that recorded.py has made."""
