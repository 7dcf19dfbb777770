// What scrolls sideways is reached, and scrolled, with the keyboard, too: code, wide tables, cells of the columns.
function makeReachable() {
  for (const part of document.querySelectorAll("pre > code, .md-typeset__scrollwrap, .cell"))
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0
}

addEventListener("load", makeReachable)
addEventListener("resize", makeReachable)
addEventListener("toggle", makeReachable, true) // what was closed had no width
