// On a phone, a table that is too wide shows each row as a list; the cells get the names of their columns.
function stackTables() {
  if (!matchMedia("(max-width: 44em)").matches) return
  for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
    if (table.offsetWidth <= table.closest(".md-content__inner").clientWidth) continue
    const heads = [...table.querySelectorAll("thead th, thead td")].map(each => each.textContent)
    for (const row of table.tBodies[0].rows)
      [...row.cells].forEach((cell, index) => {
        cell.dataset.head = heads[index]
        const content = document.createElement("div")
        content.append(...cell.childNodes)
        if (!["", "·"].includes(content.textContent)) cell.append(content)
      })
    table.classList.add("stacked")
  }
}

// A line of text or of a command breaks before an option such as `--checkpoint` or `-m`, but not inside it.
function keepOptionsWhole() {
  for (const code of document.querySelectorAll(".md-typeset :not(pre) > code, .md-typeset .language-sh code"))
    code.innerHTML = code.innerHTML.replace(/(?<![\w-])--?[a-z][\w-]*/gi, '<span class="option">$&</span>')
}

// Each command of a block is an element of its own, so that its second line can be indented.
function separateCommands() {
  for (const code of document.querySelectorAll(".md-typeset .language-sh code")) {
    const lines = code.innerHTML.trimEnd().split("\n")
    const isWhole = line => line.split("<span").length === line.split("</span").length
    if (lines.every(isWhole)) code.innerHTML = lines.map(line => `<span class="command">${line}\n</span>`).join("")
  }
}

// Elements that scroll sideways can get the focus, so that the keyboard scrolls them, too: code, wide tables, pictures, cells.
function makeReachable() {
  for (const part of document.querySelectorAll("pre > code, .md-typeset__scrollwrap, .cell, p:has(> img), math"))
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0
}

// Name the landmark with the buttons of each block of code, and make the empty corner of a table an ordinary cell.
function nameLandmarks() {
  document.querySelectorAll("th:empty").forEach(each => each.replaceWith(document.createElement("td")))
  document.querySelectorAll(".md-code__nav").forEach((each, index) => each.setAttribute("aria-label", `Code ${index + 1}`))
}

addEventListener("load", () => setTimeout(nameLandmarks, 100))
addEventListener("load", () => setTimeout(() => { stackTables(); makeReachable() }, 50))
addEventListener("resize", makeReachable)
addEventListener("toggle", makeReachable, true) // a closed element has no width

// On a phone, the three columns of a page are tabs.
function chooseColumn() {
  const first = document.querySelector(".columns")
  if (!first) return
  const bar = document.createElement("div")
  bar.className = "choose"
  bar.setAttribute("role", "group")
  bar.setAttribute("aria-label", "Column")
  const choose = chosen => {
    document.body.dataset.column = chosen
    bar.querySelectorAll("button").forEach((each, index) => each.setAttribute("aria-pressed", index === chosen))
  }
  ;["NumPy", "PyTorch", "JAX"].forEach((name, index) => {
    const button = document.createElement("button")
    button.type = "button"
    button.textContent = name
    button.onclick = () => { choose(index); makeReachable() }
    bar.append(button)
  })
  const heading = first.closest(".md-content__inner").querySelector("h1")
  heading.after(bar)
  choose(0)
}

addEventListener("DOMContentLoaded", chooseColumn)
addEventListener("DOMContentLoaded", keepOptionsWhole)
addEventListener("DOMContentLoaded", separateCommands)
